"""What nalb uses of MXNet 1.9.1, which has no types of its own. mypy alone reads these files."""

from . import autograd as autograd
from . import base as base
from . import gluon as gluon
from . import initializer as init
from . import kvstore as kv
from . import kvstore as kvstore
from . import model as model
from . import module as mod
from . import module as module
from . import ndarray as nd
from . import ndarray as ndarray
from . import optimizer as optimizer
from . import random as random
from . import symbol as sym
from . import util as util

__all__ = [
    "autograd",
    "base",
    "gluon",
    "init",
    "kv",
    "kvstore",
    "mod",
    "model",
    "module",
    "nd",
    "ndarray",
    "optimizer",
    "random",
    "sym",
    "util",
]
