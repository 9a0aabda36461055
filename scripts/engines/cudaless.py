"""Makes libraries without content in place of CUDA's, so that a wheel of torch
loads where there is no GPU.

  cudaless.py TORCH_LIB_DIR OUT_DIR

torch's wheels for x86-64 are linked to two gigabytes of NVIDIA libraries, which
a process on CPUs never calls, but the loader wants each with the versions and
symbols that torch names. They are read from torch's own tables.
"""
import collections
import pathlib
import re
import subprocess
import sys

lib, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
VENDOR = re.compile(r"^lib(cublas|cublasLt|cudart|cudnn|cufft|cupti|curand|cusolver|cusparse|nccl|nvToolsExt)\.so")

def read(*args):
    return subprocess.run(["readelf", "-W", *map(str, args)], check=True, capture_output=True, text=True).stdout

needed = set()  # sonames
versions = collections.defaultdict(set)  # soname -> versions
symbols = collections.defaultdict(set)  # version or "" -> symbols
for so in sorted(lib.glob("*.so*")):
    mine = {n for n in re.findall(r"\(NEEDED\).*\[(.+?)\]", read("-d", so)) if VENDOR.match(n)}
    needed |= mine
    current = None
    for line in read("-V", so).splitlines():
        if m := re.search(r"File: (\S+)", line):
            current = m[1]
        elif current in mine and (m := re.search(r"Name: (\S+)", line)):
            versions[current].add(m[1])
    for line in read("--dyn-syms", so).splitlines():
        f = line.split()
        if len(f) > 7 and f[6] == "UND":
            name, _, version = f[7].partition("@")
            symbols[version.strip("@")].add(name)

PREFIX = {"libcudart": ("cuda", "__cuda"), "libcudnn": ("cudnn",), "libcufft": ("cufft",), "libcupti": ("cupti",), "libcurand": ("curand",),
          "libnccl": ("nccl", "pnccl"), "libnvToolsExt": ("nvtx",), "libcublas": ("cublas",), "libcublasLt": ("cublasLt",),
          "libcusolver": ("cusolver",), "libcusparse": ("cusparse",)}
for soname in sorted(needed):
    stem = soname.split(".")[0]
    names = set().union(*(symbols[v] for v in versions[soname]))
    if not versions[soname]:
        names = {s for s in symbols[""] if s.startswith(PREFIX[stem])}
    code, script = [], []
    for n in sorted(names):
        # 100 is cudaErrorNoDevice; the registrations at load time ignore theirs.
        value = 0 if n.startswith("__cuda") else 100
        code.append(f"long {n}(void) {{ return {value}; }}")
    for v in sorted(versions[soname]):
        script.append(f"{v} {{ global: {' '.join(s + ';' for s in sorted(symbols[v]))} }};")
    args = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", "-x", "c", "-", "-o", str(out / soname), f"-Wl,-soname,{soname}"]
    if script:
        (out / "script").write_text("\n".join(script))
        args.append(f"-Wl,--version-script={out / 'script'}")
    subprocess.run(args, input="\n".join(code), text=True, check=True)
    (out / "script").unlink(missing_ok=True)
