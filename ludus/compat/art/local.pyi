# Written from names.py: python -m tests.compat.test_stubs
from ludus.compat.art.local_backend import LocalBackend as LocalBackend
