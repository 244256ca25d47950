dsec-img_LIBS := -larchive -lz -lcrypto
