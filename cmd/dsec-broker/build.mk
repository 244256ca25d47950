dsec-broker_INTERNAL := 1
dsec-broker_LIBS := -lssl -lcrypto
