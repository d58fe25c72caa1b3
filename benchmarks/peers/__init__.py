"""This package beside other engines of the same model: same machine, same file, same run."""
