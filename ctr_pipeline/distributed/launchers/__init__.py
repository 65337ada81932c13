"""What starts and stops the members of a job: a launcher for each `runtime.mode` with members."""
