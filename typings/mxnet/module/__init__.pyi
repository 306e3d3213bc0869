from . import module as module
from .module import Module as Module
