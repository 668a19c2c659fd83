"""Pictures in matplotlib's own style, whatever a user's settings are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from mpisgd.values.errors import MissingExtra


@contextmanager
def own_style(what: str = "drawing figures") -> Iterator[None]:
    """Inside, matplotlib has its defaults: neither MPLBACKEND nor a matplotlibrc changes a picture
    or ends a command; afterwards the user's are back. Also a decorator. Raises MissingExtra,
    which names `what` needs it."""
    backend = os.environ.pop("MPLBACKEND", None)  # read, and refused, at the first import
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", what, "plot") from None
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield
