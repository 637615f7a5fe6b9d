# Written from names.toml: python -m tests.compat.test_stubs
from ludus.compat.art.langchain import init_chat_model as init_chat_model
from ludus.compat.art.langchain import wrap_rollout as wrap_rollout
