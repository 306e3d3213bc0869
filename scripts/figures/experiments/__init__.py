"""Shared parts of the figures' scripts: seeded networks, runs that resume, and numbers computed from their files."""
