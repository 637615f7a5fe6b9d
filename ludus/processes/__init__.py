"""Worker processes that can be killed: function calls with a deadline, an environment and captured output."""
