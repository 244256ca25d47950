# Checkpoints, beside the supervisor: static as it is, so that the hook, which
# runs while a sandbox stands still, starts at once.
dsec-ckpt_INTERNAL := 1
dsec-ckpt_STATIC := 1
