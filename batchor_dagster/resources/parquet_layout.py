"""The path of each asset's or partition's Parquet file; no two share one.

```
<base>/<key part>/…/<partition>.parquet      a partition
<base>/<key>.parquet                         an asset without partitions
<base>/<key part>/…/<last part>@.parquet     the same, if its key has several parts: without the @
                                             it would be a partition of the asset above it
<base>/.rejected/…                           the same again, for rejected partitions
```
A name is the key's text, percent-encoded, which yields neither ``@`` nor a leading dot. A number
behind an ``@`` tells keys apart that differ in case only, for file systems that ignore case:
``DE@3`` is ``DE`` and not ``de`` (bit n is set if the n-th letter is a capital). ``@0`` follows a
key that was too long, of which the name has a prefix and a hash.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from upath import UPath

from batchor_core.integration import path_segment

SUFFIX = ".parquet"
_REJECTED = ".rejected"
_MOST_CAPITALS = 64  # more would make the name too long: a hash of the text follows instead

# A folder "a.parquet" would collide with the file of "a", and Windows drops a trailing dot.
_BAD_END = re.compile(r"\.(?=(?:parquet)?$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class ParquetLayout:
    """The places of files below one folder or URL.

    Attributes:
        base: The folder.
    """

    base: UPath

    @property
    def rejected(self) -> "ParquetLayout":
        """The layout of rejected partitions, outside of all assets' folders."""
        return ParquetLayout(base=self.base / _REJECTED)

    def folder(self, asset: Sequence[str]) -> UPath:
        """Return the folder of an asset's partitions."""
        return self.base.joinpath(*(_BAD_END.sub("%2E", _name(part)) for part in asset))

    def path(self, asset: Sequence[str], partition: str | None) -> UPath:
        """Return the file of an asset without partitions (None), or of one partition."""
        if partition is not None:
            # A multi-partition key's text has its dimensions in alphabetical order, joined by "|".
            return self.folder(asset) / f"{_name(partition)}{SUFFIX}"
        folder = self.folder(asset)
        return folder.with_name(f"{folder.name}{'@' if len(asset) > 1 else ''}{SUFFIX}")


def is_of_partition(name: str) -> bool:
    """Whether a file name in an asset's folder is that of one of its partitions."""
    return name.endswith(SUFFIX) and not name.startswith(".") and not name.endswith(f"@{SUFFIX}")


def _name(text: str) -> str:
    name = path_segment(text)
    if unquote(name) != text:
        return f"{name}@0"
    capitals = sum(1 << n for n, letter in enumerate(text) if letter.isascii() and letter.isupper())
    return f"{name}@{_brief(text, capitals)}" if capitals else name


def _brief(text: str, capitals: int) -> str:
    if capitals < 1 << _MOST_CAPITALS:
        return f"{capitals:x}"
    return hashlib.blake2b(text.encode(), digest_size=_MOST_CAPITALS // 8).hexdigest()
