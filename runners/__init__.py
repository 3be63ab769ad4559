"""Where the frameworks meet: Hydra entry points, MLflow tracking, the CLI."""
