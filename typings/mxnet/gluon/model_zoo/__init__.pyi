from . import vision as vision
