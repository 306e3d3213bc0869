from . import sampler as sampler
