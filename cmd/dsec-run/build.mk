# Static: half of what a launch costs would otherwise be our own loading.
dsec-run_STATIC := 1
