"""Packages: find, download into a cache, unpack without installing, read files with a record of their SHA-256."""

import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile


class PackageError(Exception):
    """A package cannot be had; the message says why."""


def _run(command, **options):
    environment = dict(os.environ, LC_ALL="C", DEBIAN_FRONTEND="noninteractive")
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, **options)


class Tree:
    """An unpacked package. `read` notes the digest of every file that it hands out."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.digests = {}  # path inside the package -> SHA-256 of the file as packaged

    def paths(self):
        """Regular files in sorted order, whatever order the file system has; links are left out (same text twice)."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders.sort()
            for name in files:
                full = pathlib.Path(folder, name)
                if not full.is_symlink() and full.is_file():
                    found.append(full.relative_to(self.root).as_posix())
        return sorted(found)

    def read(self, path):
        data = (self.root / path).read_bytes()
        self.digests[path] = hashlib.sha256(data).hexdigest()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


class Debian:
    """Packages of this machine's distribution, through apt-get and dpkg-deb; needs no privileges."""

    def __init__(self, cache):
        for tool in ("apt-get", "apt-cache", "dpkg-deb"):
            if shutil.which(tool) is None:
                raise PackageError(f"{tool} was not found: the corpus is made from Debian or Ubuntu packages")
        self.cache = pathlib.Path(cache).resolve()
        self.cache.mkdir(parents=True, exist_ok=True)
        try:  # apt, started by root, downloads as another user
            self.cache.chmod(0o1777)
        except PermissionError:
            pass  # somebody else's folder: it has to be writable already
        if not os.access(self.cache, os.W_OK):
            raise PackageError(f"the package cache {self.cache} is not writable; name another with --cache")
        self.options = []

    def refresh(self):
        """Package lists for a machine that has none: the system's as root, a private copy otherwise."""
        if os.geteuid() != 0:
            lists = self.cache / "lists"
            (lists / "partial").mkdir(parents=True, exist_ok=True)
            self.options = ["-o", f"Dir::State::lists={lists}", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
        result = _run(["apt-get", *self.options, "-q", "update"])
        if result.returncode != 0:
            raise PackageError("'apt-get update' failed: " + (result.stderr.strip().splitlines() or ["no message"])[-1])

    def describe(self, names):
        """{name: fields of the version that apt would install: "Version", "Size", "SHA256", ...}; unknown names are
        absent."""
        shown = _run(["apt-cache", *self.options, "show", "--no-all-versions", *names]).stdout
        found = {}
        for record in shown.split("\n\n"):
            fields = dict(re.findall(r"^(Package|Version|Size|SHA256|Architecture): (.*)$", record, re.MULTILINE))
            if len(fields) == 5:
                found.setdefault(fields["Package"], fields)
        return {name: found[name] for name in names if name in found}

    def deb(self, fields):
        """Where apt-get download puts a package: ':' as '%3a', every other character of a version stands for itself."""
        version = fields["Version"].replace(":", "%3a")
        return self.cache / f"{fields['Package']}_{version}_{fields['Architecture']}.deb"

    def download(self, wanted):
        """Fetches the packages (fields as `describe` gives them) that the cache lacks, in one go."""
        missing = [fields for fields in wanted if not self.deb(fields).exists()]
        if missing:
            _run(["apt-get", *self.options, "-q", "download", *(f"{f['Package']}={f['Version']}" for f in missing)],
                 cwd=self.cache)

    def fetch(self, fields):
        """Path of the verified .deb, downloaded unless the cache has it."""
        path = self.deb(fields)
        if path.exists() and _sha256(path) == fields["SHA256"]:
            return path
        path.unlink(missing_ok=True)
        result = _run(["apt-get", *self.options, "-q", "download", f"{fields['Package']}={fields['Version']}"], cwd=self.cache)
        if result.returncode != 0 or not path.exists():
            reason = [line for line in result.stderr.strip().splitlines() if line.startswith("E:")]
            raise PackageError(f"apt-get download {fields['Package']} failed: {' '.join(reason) or 'no message'}")
        if _sha256(path) != fields["SHA256"]:
            path.unlink()
            raise PackageError(f"{path.name} does not have the SHA-256 that the package lists give")
        return path

    @staticmethod
    def unpack(deb, folder):
        result = _run(["dpkg-deb", "-x", str(deb), str(folder)])
        if result.returncode != 0:
            raise PackageError(f"dpkg-deb -x {deb.name} failed: {result.stderr.strip()}")
        return Tree(folder)


class Npm:
    """Packages through `npm pack`: no scripts run, nothing is installed."""

    def __init__(self, cache):
        self.cache = pathlib.Path(cache).resolve()

    @staticmethod
    def reachable():
        if shutil.which("npm") is None:
            return False
        try:
            return _run(["npm", "ping", "--fetch-retries=0", "--fetch-timeout=8000"], timeout=20).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def fetch(self, name):
        folder = self.cache / ("npm_" + re.sub(r"[^A-Za-z0-9.]+", "_", name).strip("_"))
        found = sorted(folder.glob("*.tgz"))
        if not found:
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            result = _run(["npm", "pack", "--silent", "--ignore-scripts", name], cwd=partial)
            if result.returncode != 0:
                raise PackageError(f"npm pack {name} failed: {(result.stderr.strip().splitlines() or ['no message'])[-1]}")
            partial.rename(folder)
            found = sorted(folder.glob("*.tgz"))
        if len(found) != 1:
            raise PackageError(f"expected one .tgz in {folder}, found {len(found)}")
        return found[0]

    @staticmethod
    def unpack(tarball, folder):
        root = pathlib.Path(folder).resolve()
        with tarfile.open(tarball) as archive:
            for member in archive.getmembers():
                target = (root / member.name).resolve()
                if member.isfile() and target.is_relative_to(root):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.extractfile(member).read())
        return Tree(root)


def _sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
