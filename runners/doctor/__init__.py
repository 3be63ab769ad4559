"""``autopsy doctor``: what is wrong with environment, folder and store."""
