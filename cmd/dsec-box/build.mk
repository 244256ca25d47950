# The supervisor of one sandbox: static, so that a thousand share its pages and
# nothing is looked up when a sandbox starts.
dsec-box_INTERNAL := 1
dsec-box_STATIC := 1
