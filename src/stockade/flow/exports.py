"""What a lease has changed, given back: counted, as a patch, or applied to a directory.

The work is the workspace's; here it is held (`Leases.held`) and told of. Calls may run
meanwhile, so a result is the state of one moment only while none does. A patch is written to a file,
never to a slow reader. Whether the caller may write to a directory of the host is for the edge to
know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import BinaryIO

from stockade.flow.holding import Holder
from stockade.flow.leases import Leases
from stockade.terms.ports import GivenBack, Workspace
from stockade.terms.result import ExportData

Exported = tuple[ExportData, tuple[str, ...]]  # and names of what was left out


class Exports:
    """Thread-safe. Each raises Failure as `Leases.held` and the workspace."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases

    def changes(self, tenant: str | None, address: str, holder: Holder = None) -> ExportData:
        """How much differs from the source."""
        data, _ = self._export(tenant, address, holder, lambda workspace: GivenBack(0, 0, ()))
        return data

    def to_directory(
        self, tenant: str | None, address: str, target: str, holder: Holder = None
    ) -> Exported:
        """Apply the changes to the host directory `target`."""
        return self._export(tenant, address, holder, lambda workspace: workspace.export(target))

    def patch(
        self, tenant: str | None, address: str, out: BinaryIO, holder: Holder = None
    ) -> Exported:
        """Write the changes to `out`, a file, as a patch."""
        return self._export(
            tenant, address, holder, lambda workspace: workspace.patch(out), is_patch=True
        )

    def _export(
        self,
        tenant: str | None,
        address: str,
        holder: Holder,
        write: Callable[[Workspace], GivenBack],
        *,
        is_patch: bool = False,
    ) -> Exported:
        with self._leases.held(tenant, address, holder) as workspace:
            kinds = Counter(change.kind for change in workspace.changes())
            given = write(workspace)
        data = ExportData(
            kind="export",
            added=kinds["added"],
            modified=kinds["modified"] + kinds["type_changed"],
            deleted=kinds["deleted"],
            skipped=given.skipped,
            patch_bytes=given.size if is_patch else None,
        )
        return data, given.left_out
