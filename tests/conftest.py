"""Settings of all tests: a property is judged by its examples, not by how long a loaded machine
takes for one of them."""

from hypothesis import settings

from tasks.engines.vllm.attention import attention_path

settings.register_profile("rollflow", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=10_000)
settings.load_profile("rollflow")


def pytest_report_header() -> str:
    """The kernel that real engines run on here: its faults are one kind of machine's and not
    another's."""
    return f"attention path of the cores: {attention_path() or 'unknown'}"
