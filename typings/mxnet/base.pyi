import ctypes

_LIB: ctypes.CDLL
NDArrayHandle = ctypes.c_void_p
OpHandle = ctypes.c_void_p
KVStoreHandle = ctypes.c_void_p
mx_uint = ctypes.c_uint

class MXNetError(RuntimeError): ...

def check_call(ret: int) -> None: ...
