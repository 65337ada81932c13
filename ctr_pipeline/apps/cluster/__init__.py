"""Jobs on Kubernetes: `submission` starts one, `operation` looks at it and ends it."""
