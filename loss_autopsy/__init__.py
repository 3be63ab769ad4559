"""The public names of loss-autopsy."""
