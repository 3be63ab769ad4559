# The lab page's own spelling:
#   seed=42 injection=scale injection_step=500 just phase-19-train

seed := env("seed", "42")
injection := env("injection", "none")
injection_step := env("injection_step", "500")

# Train one run of phase 19; further arguments are Hydra's.
phase-19-train *arguments:
    {{justfile_directory()}}/.venv/bin/autopsy train seed={{quote(seed)}} injection={{quote(injection)}} injection_step={{quote(injection_step)}} {{arguments}}
