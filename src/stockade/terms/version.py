"""The one place of the version; the package's metadata is read from here."""

from typing import Final

VERSION: Final = "0.1.0"
