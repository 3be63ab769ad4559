"""One self-contained HTML page that shows a run, or several laid over each other."""
