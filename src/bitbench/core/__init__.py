"""The words of bitbench as frozen types. No I/O, no third-party package but pydantic."""
