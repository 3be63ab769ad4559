"""Pure functions of saved records: reading, detecting, accounting, verifying."""
