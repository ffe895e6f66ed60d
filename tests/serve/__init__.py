"""A package, so that others that import `conftest` get the one above."""
