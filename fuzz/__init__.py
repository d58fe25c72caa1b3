"""Files and blocks that are wrong in ways nobody thought of: ``make fuzz``."""
