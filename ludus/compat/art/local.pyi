# Written from names.toml: python -m tests.compat.test_stubs
from ludus.compat.art.local_backend import LocalBackend as LocalBackend
