"""The daemon in another boot of the host, whose id is the first argument."""

from __future__ import annotations

import sys

from stockade.host import clocks

if __name__ == "__main__":
    boot = sys.argv.pop(1)
    # Before whoever takes the name from here.
    clocks.current_boot = lambda: boot
    from stockade.command import main

    main()
