"""Settings of all tests: a property is judged by its examples, not by how long a loaded machine takes for one of them."""

from hypothesis import settings

settings.register_profile("rollflow", deadline=None)
settings.load_profile("rollflow")
