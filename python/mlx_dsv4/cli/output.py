"""Files that commands write."""

import errno
import os
from pathlib import Path


def refuse_existing(out: Path, *, force: bool) -> None:
    """Leave alone what is at a path, be it a link that leads nowhere, unless told otherwise.

    Raises:
        FileExistsError: something is there.
    """
    if os.path.lexists(out) and not force:
        raise FileExistsError(errno.EEXIST, "exists; --force replaces it", str(out))
