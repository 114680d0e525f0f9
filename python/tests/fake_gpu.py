"""The driver without a GPU that the library's own tests run on (tests/cuda/fake_driver.cc), for Python: KVLOOM_TEST_FAKE_DRIVER is its file. What is
put into a stream is done when somebody waits for it; memory of the device can't be touched by the host; kernels are the CPU's."""

import ctypes
import os

import numpy as np

from exporters import CUDA, Exchange, bf16

BFLOAT = 4  # DLPack's code


class DeviceArray(Exchange):
    """An array in the memory of device 0; its bytes stay there for good. uint16 arrays are bfloat16."""

    def __init__(self, gpu, host, device=(CUDA, 0)):
        host = np.ascontiguousarray(host)
        self.gpu = gpu
        address = gpu.allocate(host.nbytes)
        there = np.ndarray(host.shape, host.dtype, (ctypes.c_char * max(host.nbytes, 1)).from_address(address))
        super().__init__(there, device, code=BFLOAT if host.dtype == np.uint16 else None)
        self.write(host)

    def write(self, host):
        """Behind everything on the device, as a copy of pageable memory is."""
        host = np.ascontiguousarray(host, self.array.dtype)
        assert host.shape == self.array.shape
        self.gpu.call("cuMemcpyHtoD_v2", ctypes.c_void_p(self.array.ctypes.data), ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.nbytes))

    def read(self):
        self.gpu.call("cuCtxSynchronize")
        host = np.empty(self.array.shape, self.array.dtype)
        self.gpu.call("cuMemcpyDtoH_v2", ctypes.c_void_p(host.ctypes.data), ctypes.c_void_p(self.array.ctypes.data), ctypes.c_size_t(host.nbytes))
        return host

    def view(self, index):
        """A part of it, as NumPy indexes, in the same memory."""
        part = DeviceArray.__new__(DeviceArray)
        part.gpu = self.gpu
        Exchange.__init__(part, self.array[index], self.device, code=self.tensor.code)
        return part


class FakeGpu:
    def __init__(self):
        file = os.environ["KVLOOM_TEST_FAKE_DRIVER"]
        os.environ["KVLOOM_CUDA_DRIVER"] = file  # before the library looks for one
        os.environ["KVLOOM_NO_JIT"] = "1"
        self.driver = ctypes.CDLL(file)

    def call(self, function, *arguments):
        status = getattr(self.driver, function)(*arguments)
        assert status == 0, f"{function}: {status}"

    def allocate(self, size):
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def add_kernel(self, key, spec):
        """What a GPU would compile for it."""
        assert self.driver.fake_add_kernel(key.encode(), spec.num_qo_heads, spec.num_kv_heads, spec.page_size or 1) == 1

    def put(self, host):
        return DeviceArray(self, host)

    def put_bf16(self, host):
        return self.put(bf16(host))

    def stream(self):
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value

    def synchronize(self, stream):
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def captured(self, stream, work):
        """A graph of what work() puts into the stream; launch() puts it there again."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), 0)
        try:
            work()
        finally:
            self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0))
        return lambda: self.call("cuGraphLaunch", executable, ctypes.c_void_p(stream))
