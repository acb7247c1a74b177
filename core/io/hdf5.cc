// Files, groups and datasets of the HDF5 wrapper (attributes: hdf5_attributes.cc).
#include "core/io/hdf5.h"

#include <algorithm>
#include <array>

#include "core/io/files.h"
#include "core/io/hdf5_internal.h"

namespace overtok {

using internal::Handle;
using internal::Hdf5Error;
using internal::Hdf5Lock;

namespace {

constexpr hsize_t kAlignment = 4096;

std::string Joined(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<int64_t> ShapeOf(hid_t space) {
  const int rank = H5Sget_simple_extent_ndims(space);
  std::vector<hsize_t> dims(static_cast<size_t>(std::max(rank, 0)));
  if (rank > 0) H5Sget_simple_extent_dims(space, dims.data(), nullptr);
  return std::vector<int64_t>(dims.begin(), dims.end());
}

absl::Status NotThere(absl::string_view dataset, absl::string_view path) {
  return absl::NotFoundError(absl::StrCat(path, " has no dataset ", dataset));
}

// H5Lexists fails on missing intermediate groups, so every prefix is asked for.
bool LinkExists(hid_t file, const std::string& object) {
  if (object.empty() || object == "/") return true;
  for (size_t end = object.find('/', 1);; end = object.find('/', end + 1)) {
    const std::string prefix = object.substr(0, end);
    if (H5Lexists(file, prefix.c_str(), H5P_DEFAULT) <= 0) return false;
    if (end == std::string::npos) return true;
  }
}

bool IsDataset(hid_t file, const std::string& object) {
  if (!LinkExists(file, object)) return false;
  const Handle id(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose);
  return id.ok() && H5Iget_type(id.get()) == H5I_DATASET;
}

absl::Status CreateLocked(hid_t file, const std::string& path, const std::string& dataset,
                          DType dtype, const std::vector<int64_t>& shape) {
  std::vector<hsize_t> dims(shape.begin(), shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr),
                     H5Sclose);
  const Handle create(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  const Handle link(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(link.get(), 1);
  H5Pset_layout(create.get(), H5D_CONTIGUOUS);
  // Early allocation gives the dataset its address at once; without a fill value nothing is
  // written for it.
  H5Pset_alloc_time(create.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(create.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(create.get(), false);  // equal content makes equal files
  const Handle id(H5Dcreate2(file, dataset.c_str(), internal::FileType(dtype), space.get(),
                             link.get(), create.get(), H5P_DEFAULT),
                  H5Dclose);
  if (!id.ok()) return Hdf5Error(absl::StrCat("create the dataset ", dataset), path);
  return absl::OkStatus();
}

// Moves elements [begin, begin + n) of the flattened dataset. A hyperslab cannot describe such a
// range of a dataset of rank > 1 in one piece, so its boundaries must lie on rows of the first
// dimension there; otherwise the range is cut into head, rows and tail.
template <class Move>
absl::Status ForEachPiece(const std::vector<int64_t>& shape, int64_t begin, int64_t count,
                          const Move& move) {
  const size_t rank = shape.size();
  std::vector<int64_t> stride(rank, 1);
  for (size_t i = rank; i-- > 1;) stride[i - 1] = stride[i] * shape[i];
  int64_t done = 0;
  while (done < count) {
    const int64_t at = begin + done, left = count - done;
    // The outermost dimension along which a whole number of slices starts here and fits.
    size_t dim = 0;
    while (dim + 1 < rank && (at % stride[dim] != 0 || left < stride[dim])) ++dim;
    std::vector<hsize_t> start(rank), extent(rank, 1);
    int64_t rest = at;
    for (size_t i = 0; i < rank; ++i) {
      start[i] = static_cast<hsize_t>(rest / stride[i]);
      rest %= stride[i];
      if (i > dim) extent[i] = static_cast<hsize_t>(shape[i]);
    }
    const int64_t room = shape[dim] - static_cast<int64_t>(start[dim]);
    const int64_t slices = std::min(room, left / stride[dim]);
    extent[dim] = static_cast<hsize_t>(slices);
    OT_RETURN_IF_ERROR(move(start, extent, done, slices * stride[dim]));
    done += slices * stride[dim];
  }
  return absl::OkStatus();
}

enum class Direction { kRead, kWrite };

absl::Status Transfer(hid_t file, const std::string& path, const std::string& dataset,
                      int64_t begin, bool whole, const Tensor& tensor, Direction direction) {
  const char* verb = direction == Direction::kRead ? "read" : "write";
  if (!IsDataset(file, dataset)) return NotThere(dataset, path);
  const Handle id(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose);
  if (!id.ok()) return Hdf5Error(absl::StrCat("open the dataset ", dataset), path);
  const Handle space(H5Dget_space(id.get()), H5Sclose);
  const Handle type(H5Dget_type(id.get()), H5Tclose);
  const std::vector<int64_t> shape = ShapeOf(space.get());
  const absl::StatusOr<DType> stored = internal::DTypeOfStored(type.get());
  if (!stored.ok()) return Annotate(stored.status(), absl::StrCat(path, ": dataset ", dataset));
  const int64_t total = Elements(shape), count = tensor.elements();
  if (*stored != tensor.dtype() || (whole && total != count)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": dataset ", dataset, " is ", NameOf(*stored), " ", Joined(shape),
                     ", expected ", NameOf(tensor.dtype()), " ", tensor.shape().ToString()));
  }
  if (begin < 0 || count > total || begin > total - count) {
    return absl::OutOfRangeError(absl::StrCat(path, ": dataset ", dataset, " has ", total,
                                              " elements; [", begin, ", ", begin, " + ", count,
                                              ") lies outside"));
  }
  if (count == 0) return absl::OkStatus();
  const hid_t memory_type = internal::NativeType(tensor.dtype());
  char* data = static_cast<char*>(tensor.raw());
  const auto call = [&](hid_t memory_space, hid_t file_space, char* at) {
    return direction == Direction::kRead
               ? H5Dread(id.get(), memory_type, memory_space, file_space, H5P_DEFAULT, at)
               : H5Dwrite(id.get(), memory_type, memory_space, file_space, H5P_DEFAULT, at);
  };
  if (count == total) {
    if (call(H5S_ALL, H5S_ALL, data) < 0) {
      return Hdf5Error(absl::StrCat(verb, " the dataset ", dataset), path);
    }
    return absl::OkStatus();
  }
  return ForEachPiece(
      shape, begin, count,
      [&](const std::vector<hsize_t>& start, const std::vector<hsize_t>& extent, int64_t done,
          int64_t elements) -> absl::Status {
        const hsize_t flat = static_cast<hsize_t>(elements);
        const Handle memory(H5Screate_simple(1, &flat, nullptr), H5Sclose);
        if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start.data(), nullptr, extent.data(),
                                nullptr) < 0 ||
            call(memory.get(), space.get(), data + done * SizeOf(tensor.dtype())) < 0) {
          return Hdf5Error(absl::StrCat(verb, " a part of the dataset ", dataset), path);
        }
        return absl::OkStatus();
      });
}

std::vector<int64_t> DimsOf(const Tensor& tensor) {
  std::vector<int64_t> shape(static_cast<size_t>(tensor.rank()));
  for (int i = 0; i < tensor.rank(); ++i) shape[static_cast<size_t>(i)] = tensor.dim(i);
  return shape;
}

}  // namespace

absl::StatusOr<Hdf5File> Hdf5File::Create(absl::string_view path) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  const Hdf5Lock lock;
  Hdf5File file;
  file.path_ = std::string(path);
  file.writable_ = true;
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  // Data of a page or more starts on a page; small datasets are packed, or a trace of hundreds of
  // them would be mostly padding.
  H5Pset_alignment(access.get(), kAlignment, kAlignment);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  file.id_ = H5Fcreate(file.path_.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get());
  if (file.id_ < 0) return Hdf5Error("create the file", path);
  return file;
}

absl::StatusOr<Hdf5File> Hdf5File::OpenRead(absl::string_view path) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat("there is no file ", path));
  if (IsDirectory(path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory, expected an HDF5 file"));
  }
  const Hdf5Lock lock;
  Hdf5File file;
  file.path_ = std::string(path);
  if (H5Fis_hdf5(file.path_.c_str()) <= 0) {
    H5Eclear2(H5E_DEFAULT);
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not an HDF5 file (or not readable, or cut off at its start)"));
  }
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_file_locking(access.get(), 0, 1);
  H5Pset_fclose_degree(access.get(), H5F_CLOSE_STRONG);
  file.id_ = H5Fopen(file.path_.c_str(), H5F_ACC_RDONLY, access.get());
  if (file.id_ < 0) {
    return Annotate(Hdf5Error("open the file", path),
                    "the file is damaged or cut off, or its file system refuses locks "
                    "(HDF5_USE_FILE_LOCKING=FALSE in the environment helps there)");
  }
  return file;
}

Hdf5File::Hdf5File(Hdf5File&& other) noexcept
    : path_(std::move(other.path_)), id_(other.id_), writable_(other.writable_) {
  other.id_ = -1;
}

Hdf5File& Hdf5File::operator=(Hdf5File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(id_, other.id_);
  std::swap(writable_, other.writable_);
  return *this;
}

Hdf5File::~Hdf5File() {
  if (id_ < 0) return;
  const Hdf5Lock lock;
  H5Fclose(id_);
}

absl::Status Hdf5File::Flush() {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  if (H5Fflush(id_, H5F_SCOPE_LOCAL) < 0) return Hdf5Error("flush what was written", path_);
  return absl::OkStatus();
}

absl::Status Hdf5File::Close() {
  OT_CHECK(id_ >= 0) << path_ << " is closed already";
  absl::Status status = writable_ ? Flush() : absl::OkStatus();
  {
    const Hdf5Lock lock;
    if (H5Fclose(id_) < 0 && status.ok()) status = Hdf5Error("close the file", path_);
    id_ = -1;
  }
  OT_RETURN_IF_ERROR(status);
  return writable_ ? FsyncFile(path_) : absl::OkStatus();
}

absl::Status Hdf5File::CreateGroup(absl::string_view group) {
  const Hdf5Lock lock;
  const std::string name(group);
  if (LinkExists(id_, name)) return absl::OkStatus();
  const Handle link(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(link.get(), 1);
  const Handle id(H5Gcreate2(id_, name.c_str(), link.get(), H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  if (!id.ok()) return Hdf5Error(absl::StrCat("create the group ", group), path_);
  return absl::OkStatus();
}

absl::Status Hdf5File::Write(absl::string_view dataset, const Tensor& host_tensor) {
  OT_RETURN_IF_ERROR(CreateDataset(dataset, host_tensor.dtype(), DimsOf(host_tensor)));
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  return Transfer(id_, path_, std::string(dataset), 0, true, host_tensor, Direction::kWrite);
}

absl::Status Hdf5File::CreateDataset(absl::string_view dataset, DType dtype,
                                     const std::vector<int64_t>& shape) {
  OT_CHECK(!shape.empty()) << "dataset " << std::string(dataset) << " has no dimensions";
  const Hdf5Lock lock;
  return CreateLocked(id_, path_, std::string(dataset), dtype, shape);
}

absl::Status Hdf5File::WriteRange(absl::string_view dataset, int64_t begin,
                                  const Tensor& host_tensor) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  return Transfer(id_, path_, std::string(dataset), begin, false, host_tensor, Direction::kWrite);
}

bool Hdf5File::Exists(absl::string_view object) const {
  const Hdf5Lock lock;
  return LinkExists(id_, std::string(object));
}

absl::StatusOr<std::vector<std::string>> Hdf5File::List(absl::string_view group) const {
  const Hdf5Lock lock;
  const std::string name(group);
  if (!LinkExists(id_, name)) {
    return absl::NotFoundError(absl::StrCat(path_, " has no group ", group));
  }
  const Handle id(H5Gopen2(id_, name.c_str(), H5P_DEFAULT), H5Gclose);
  if (!id.ok()) return Hdf5Error(absl::StrCat("open the group ", group), path_);
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* link, const H5L_info_t*, void* out) -> herr_t {
    static_cast<std::vector<std::string>*>(out)->emplace_back(link);
    return 0;
  };
  if (H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_INC, nullptr, collect, &names) < 0) {
    return Hdf5Error(absl::StrCat("list the group ", group), path_);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<Hdf5DatasetInfo> Hdf5File::Info(absl::string_view dataset) const {
  const Hdf5Lock lock;
  const std::string name(dataset);
  if (!IsDataset(id_, name)) return NotThere(dataset, path_);
  const Handle id(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!id.ok()) return Hdf5Error(absl::StrCat("open the dataset ", dataset), path_);
  const Handle space(H5Dget_space(id.get()), H5Sclose);
  const Handle type(H5Dget_type(id.get()), H5Tclose);
  const Handle create(H5Dget_create_plist(id.get()), H5Pclose);
  Hdf5DatasetInfo info;
  const absl::StatusOr<DType> dtype = internal::DTypeOfStored(type.get());
  if (!dtype.ok()) return Annotate(dtype.status(), absl::StrCat(path_, ": dataset ", dataset));
  info.dtype = *dtype;
  info.shape = ShapeOf(space.get());
  const uint64_t bytes =
      static_cast<uint64_t>(Elements(info.shape)) * static_cast<uint64_t>(SizeOf(info.dtype));
  const haddr_t address = H5Dget_offset(id.get());
  // The size is compared too: with a user block, the address of data that was never allocated does
  // not read as "undefined". External files have no address in this one.
  if (H5Pget_layout(create.get()) == H5D_CONTIGUOUS && H5Pget_external_count(create.get()) == 0 &&
      internal::IsNativeOrder(type.get()) && address != HADDR_UNDEF && bytes > 0 &&
      H5Dget_storage_size(id.get()) == bytes) {
    info.contiguous = true;
    info.offset = static_cast<int64_t>(address);
  }
  return info;
}

absl::Status Hdf5File::Read(absl::string_view dataset, const Tensor& host_tensor) const {
  const Hdf5Lock lock;
  return Transfer(id_, path_, std::string(dataset), 0, true, host_tensor, Direction::kRead);
}

absl::Status Hdf5File::ReadRange(absl::string_view dataset, int64_t begin,
                                 const Tensor& host_tensor) const {
  const Hdf5Lock lock;
  return Transfer(id_, path_, std::string(dataset), begin, false, host_tensor, Direction::kRead);
}

}  // namespace overtok
