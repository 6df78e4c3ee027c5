"""The ranges of host user ids that leases get."""

from __future__ import annotations

from typing import Final

from stockade.terms.fault import Code, failure
from stockade.terms.lease import UID_RANGE
from stockade.terms.ports import Ledger

# The ranges of leases (`UID_RANGE`) are from here on: above all that distributions and
# directory services hand out, and below 2^32 - 1, which is no user id.
UID_FLOOR: Final = 1_073_741_824
UID_SLOTS: Final = (2**32 - 1 - UID_FLOOR) // UID_RANGE


def free_base(ledger: Ledger, offset: int) -> int:
    """The first id of a range that no other lease of this ledger has. The counter never repeats,
    the ranges do after `UID_SLOTS` leases. `offset` is the slot to begin at."""
    taken = {record.uid_base for record in ledger.leases()}
    for _ in range(UID_SLOTS):
        slot = (offset + ledger.next_uid_slot()) % UID_SLOTS
        base = UID_FLOOR + slot * UID_RANGE
        if base not in taken:
            return base
    raise failure(Code.BUSY, f"all {UID_SLOTS} ranges of user ids are in use")
