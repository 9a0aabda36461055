"""The same matrix products in fp32 and in bf16, for about ten seconds each."""

import json
import os
import time

import torch

device = torch.device("cuda", 0)
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
size = int(os.environ.get("SIZE", "8192"))
a = torch.randn(size, size, device=device)
b = torch.randn(size, size, device=device)
exact = a @ b

found = {"devices": torch.cuda.device_count(), "name": torch.cuda.get_device_name(0), "capability": "%d.%d" % torch.cuda.get_device_capability(0)}
for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    x, y = a.to(dtype), b.to(dtype)
    product = x @ y
    torch.cuda.synchronize()
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < 10:
        for _ in range(10):
            torch.matmul(x, y, out=product)
        torch.cuda.synchronize()
        rounds += 10
    took = time.monotonic() - began
    found[name] = {
        "tflops": 2 * size**3 * rounds / took / 1e12,
        "error": ((product.float() - exact).norm() / exact.norm()).item(),
    }
found["allocated"] = torch.cuda.max_memory_allocated()
print("FOUND " + json.dumps(found), flush=True)
