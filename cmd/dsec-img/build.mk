dsec-img_LIBS := -larchive -lcrypto
