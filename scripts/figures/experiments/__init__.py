"""The figures of Cai et al. run again: seeded networks, runs that resume, and what is computed from their files."""
