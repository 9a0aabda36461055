#!/usr/bin/env python3
"""Makes the images of the engines' tests as OCI layouts, from files of this
Debian: nothing is pulled. The same files give the same digests.

    images.py DIR                      what is not there yet of DIR/busybox, DIR/torch
    images.py DIR worker PATH          DIR/worker with the falaj-worker at PATH

busybox  a shell, for pods and containers that are not about Python
torch    Python 3.11 with PyTorch and scikit-learn, and py-spy
worker   /falaj-worker, what the Kubernetes engine copies into pods

DIR/NAME is a layout (oci-layout, index.json, blobs/); DIR/NAME/reference is how
the image is called, by digest.
"""

import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

LIB = "usr/lib/x86_64-linux-gnu"
USERS = "root:x:0:0::/:/bin/sh\nfalaj:x:65532:65532::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
APPLETS = (
    "sh sleep echo cat ls cp mv rm mkdir ln chmod date id nproc wget httpd nc true false env free head tail dd yes"
    " timeout tr setsid kill ps wc sort grep sed awk tee touch mkfifo readlink stat test [ expr seq hostname ip"
).split()


class Layer:
    """A tar with sorted members, and times and owners that tell nothing."""

    def __init__(self):
        self.members = {}

    def dir(self, path, mode=0o755):
        if path and path not in self.members:
            self.dir(os.path.dirname(path))
            self.members[path] = (tarfile.DIRTYPE, mode, 0, None)

    def file(self, path, data, mode=0o644, mtime=0):
        self.dir(os.path.dirname(path))
        self.members[path] = (tarfile.REGTYPE, mode, mtime, data)

    def copy(self, source, path):
        """A file of this machine; its time stays, which Python's caches name."""
        s = os.stat(source)
        self.file(path, source, 0o755 if s.st_mode & 0o111 else 0o644, int(s.st_mtime))

    def link(self, path, target):
        self.dir(os.path.dirname(path))
        self.members[path] = (tarfile.SYMTYPE, 0o777, 0, target)

    def write(self, out):
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(self.members):
                kind, mode, mtime, what = self.members[path]
                info = tarfile.TarInfo(path)
                info.type, info.mode, info.mtime = kind, mode, mtime
                if kind == tarfile.SYMTYPE:
                    info.linkname = what
                if kind != tarfile.REGTYPE:
                    tar.addfile(info)
                elif isinstance(what, bytes):
                    info.size = len(what)
                    tar.addfile(info, io.BytesIO(what))
                else:
                    with open(what, "rb") as f:
                        info.size = os.fstat(f.fileno()).st_size
                        tar.addfile(info, f)


class Digester(io.RawIOBase):
    """Passes on what is written, and knows its digest and size."""

    def __init__(self, out):
        self.out, self.hash, self.size = out, hashlib.sha256(), 0

    def writable(self):
        return True

    def write(self, data):
        self.hash.update(data)
        self.size += len(data)
        return self.out.write(data)

    @property
    def digest(self):
        return "sha256:" + self.hash.hexdigest()


def image(directory, name, layers, config):
    """Writes DIR/NAME, as a whole or not at all."""
    final, stage = os.path.join(directory, name), os.path.join(directory, name + ".new")
    shutil.rmtree(stage, ignore_errors=True)
    blobs = os.path.join(stage, "blobs", "sha256")
    os.makedirs(blobs)

    def blob(data, kind):
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(blobs, digest), "wb") as f:
            f.write(data)
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}

    described, plain = [], []
    for layer in layers:
        part = os.path.join(blobs, "part")
        with open(part, "wb") as f:
            packed = Digester(f)
            with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=1, mtime=0) as z:
                raw = Digester(z)
                layer.write(raw)
        os.rename(part, os.path.join(blobs, packed.digest[7:]))
        plain.append(raw.digest)
        described.append({"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": packed.digest, "size": packed.size})
    config = {"architecture": "amd64", "os": "linux", "config": config, "rootfs": {"type": "layers", "diff_ids": plain}}
    manifest = blob(
        json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": blob(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
                "layers": described,
            }
        ).encode(),
        "application/vnd.oci.image.manifest.v1+json",
    )
    reference = "localhost/falaj/%s@%s" % (name, manifest["digest"])
    manifest["annotations"] = {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": reference}
    for path, text in (
        ("oci-layout", '{"imageLayoutVersion":"1.0.0"}'),
        ("index.json", json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest]})),
        ("reference", reference + "\n"),
    ):
        with open(os.path.join(stage, path), "w") as f:
            f.write(text)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(stage, final)
    print("  · image %s (%d MB)" % (reference, sum(d["size"] for d in described) >> 20))


def shell():
    base = Layer()
    for d in ("proc", "sys", "dev", "etc", "run", "var"):
        base.dir(d)
    base.dir("tmp", 0o1777)
    for d in ("bin", "lib", "lib64", "sbin"):
        base.dir("usr/" + d)
        base.link(d, "usr/" + d)
    base.copy("/bin/busybox", "usr/bin/busybox")
    for applet in APPLETS:
        base.link("usr/bin/" + applet, "busybox")
    base.file("etc/passwd", USERS.encode())
    base.file("etc/group", b"root:x:0:\nfalaj:x:65532:\n")
    return base


def run(*argv):
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def closure(*packages):
    """The packages of Python that these need."""
    status, seen, todo = {}, [], list(packages)
    for line in run("dpkg-query", "-W", "-f", "${Package}\t${Depends}\n").splitlines():
        package, _, depends = line.partition("\t")
        status[package] = re.findall(r"(?:^|[,|]\s*)([a-z0-9][a-z0-9.+-]+)", depends)
    while todo:
        package = todo.pop()
        if package in status and package not in seen:
            seen.append(package)
            todo += [d for d in status[package] if re.match(r"(lib)?python3", d)]
    return seen


def python(packages, skip=()):
    """The files of packages below Python's own directories, as path → file."""
    files = {}
    for package in packages:
        for path in run("dpkg", "-L", package).splitlines():
            if not path.startswith(("/usr/lib/python3/", "/usr/lib/python3.11/")) or "/tests/" in path or path in skip:
                continue
            if not os.path.isfile(path) or "/include/" in path:
                continue
            files[path] = path
            directory, name = os.path.split(path)
            cached = os.path.join(directory, "__pycache__", name[:-3] + ".cpython-311.pyc")
            if name.endswith(".py") and os.path.exists(cached):
                files[cached] = cached
    return files


def libraries(files):
    """What the dynamic linker would load for these, as name → file."""
    found, binary = {}, [f for f in files if re.search(r"\.so(\.|$)|/bin/", f)]
    for i in range(0, len(binary), 64):
        out = subprocess.run(["ldd"] + binary[i : i + 64], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True).stdout
        for name, path in re.findall(r"^\s+(\S+) => (/\S+) ", out, re.M):
            found[name] = os.path.realpath(path)
    return found


def torch():
    base, top = shell(), Layer()
    base.copy("/usr/bin/python3.11", "usr/bin/python3.11")
    base.link("usr/bin/python3", "python3.11")
    base.copy("/lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2")
    own = closure("python3.11", "libpython3.11-stdlib", "python3-minimal")
    standard = python([p for p in own if "3.11" in p])
    # All that this machine has for its Python: an environment with site_packages
    # finds the same versions here and there.
    site = run("dpkg-query", "-S", "/usr/lib/python3/dist-packages").partition(": ")[0].split(", ")
    wanted = sorted(set(closure("python3-torch", "python3-sklearn", "python3-distutils")) | set(p.partition(":")[0] for p in site))
    needed = python(wanted, standard)
    shared = libraries(["/usr/bin/python3.11"] + list(standard))
    for lib in ("libgcc_s.so.1", "librt.so.1", "libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2"):
        shared[lib] = os.path.realpath("/lib/x86_64-linux-gnu/" + lib)
    more = libraries(needed)
    for layer, files, libs in ((base, standard, shared), (top, needed, {n: p for n, p in more.items() if n not in shared})):
        for path in files:
            layer.copy(os.path.realpath(path), path[1:])
        for lib, path in libs.items():
            layer.copy(path, LIB + "/" + lib)
    top.copy(".tmp/venv/ray/bin/py-spy", "usr/local/bin/py-spy")  # static
    return [base, top]


def main(directory, *what):
    os.makedirs(directory, exist_ok=True)
    # One at a time: whoever waits finds what it wants made. It ends with us.
    lock = open(os.path.join(directory, "lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    environment = {"Env": ["PATH=/usr/bin:/bin"], "WorkingDir": "/"}
    if what:
        layer = Layer()
        layer.file("falaj-worker", open(what[1], "rb").read(), 0o755)
        return image(directory, "worker", [layer], {"Entrypoint": ["/falaj-worker"]})
    # Remade when this file or the packages change.
    stamp = hashlib.sha256(open(__file__, "rb").read())
    stamp.update(run("dpkg-query", "-W", "-f", "${Package} ${Version}\n").encode())
    path = os.path.join(directory, "stamp")
    if os.path.exists(path) and open(path).read() == stamp.hexdigest():
        return
    image(directory, "busybox", [shell()], dict(environment, Cmd=["sleep", "2147483647"]))
    image(directory, "torch", torch(), dict(environment, Cmd=["python3"]))
    with open(path, "w") as f:
        f.write(stamp.hexdigest())


if __name__ == "__main__":
    if len(sys.argv) not in (2, 4) or len(sys.argv) == 4 and sys.argv[2] != "worker":
        sys.exit(__doc__)
    main(*sys.argv[1:])
