# Dynamic: there is no static library of libmnl.
dsec-net_LIBS := -lnftnl -lmnl
