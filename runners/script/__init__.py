"""Runs that anybody's script logs: what stands behind ``loss_autopsy.init``."""
