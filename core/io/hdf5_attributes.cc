// Attributes of the HDF5 wrapper: scalars, and text as variable-length UTF-8 (which lies outside
// the object header and so may exceed its 64 KiB).
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "core/io/hdf5_internal.h"

namespace overtok {

using internal::Handle;
using internal::Hdf5Error;
using internal::Hdf5Lock;

namespace {

hid_t MakeTextType() {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, H5T_CSET_UTF8);
  return type;
}

absl::Status SetLocked(hid_t file, const std::string& path, const std::string& object,
                       const std::string& name, hid_t file_type, hid_t memory_type,
                       const void* value) {
  const Handle target(H5Oopen(file, object.c_str(), H5P_DEFAULT), H5Oclose);
  if (!target.ok()) return absl::NotFoundError(absl::StrCat(path, " has no object ", object));
  if (H5Aexists(target.get(), name.c_str()) > 0) H5Adelete(target.get(), name.c_str());
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(
      H5Acreate2(target.get(), name.c_str(), file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.ok() || H5Awrite(attribute.get(), memory_type, value) < 0) {
    return Hdf5Error(absl::StrCat("write the attribute ", name, " of ", object), path);
  }
  return absl::OkStatus();
}

// Calls read(attribute, type) for an existing attribute of one element.
template <class Read>
absl::Status WithAttribute(hid_t file, const std::string& path, absl::string_view object,
                           absl::string_view name, const Read& read) {
  const std::string object_name(object), attribute_name(name);
  const Handle target(H5Oopen(file, object_name.c_str(), H5P_DEFAULT), H5Oclose);
  if (!target.ok()) return absl::NotFoundError(absl::StrCat(path, " has no object ", object));
  if (H5Aexists(target.get(), attribute_name.c_str()) <= 0) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", object, " has no attribute ", attribute_name));
  }
  const Handle attribute(H5Aopen(target.get(), attribute_name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(H5Aget_type(attribute.get()), H5Tclose);
  const Handle space(H5Aget_space(attribute.get()), H5Sclose);
  if (!attribute.ok() || !type.ok() || H5Sget_simple_extent_npoints(space.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": attribute ", name, " of ", object, " is not a single value"));
  }
  return read(attribute.get(), type.get());
}

absl::Status WrongKind(const std::string& path, absl::string_view object, absl::string_view name,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": attribute ", name, " of ", object, " is not ", expected));
}

}  // namespace

absl::Status Hdf5File::SetAttribute(absl::string_view object, absl::string_view name,
                                    absl::string_view text) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  const Handle type(MakeTextType(), H5Tclose);
  const std::string value(text);
  const char* pointer = value.c_str();
  return SetLocked(id_, path_, std::string(object), std::string(name), type.get(), type.get(),
                   &pointer);
}

absl::Status Hdf5File::SetAttribute(absl::string_view object, absl::string_view name,
                                    int64_t value) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  return SetLocked(id_, path_, std::string(object), std::string(name), H5T_STD_I64LE,
                   H5T_NATIVE_INT64, &value);
}

absl::Status Hdf5File::SetAttribute(absl::string_view object, absl::string_view name,
                                    uint64_t value) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  return SetLocked(id_, path_, std::string(object), std::string(name), H5T_STD_U64LE,
                   H5T_NATIVE_UINT64, &value);
}

absl::Status Hdf5File::SetAttribute(absl::string_view object, absl::string_view name,
                                    double value) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const Hdf5Lock lock;
  return SetLocked(id_, path_, std::string(object), std::string(name), H5T_IEEE_F64LE,
                   H5T_NATIVE_DOUBLE, &value);
}

absl::StatusOr<std::string> Hdf5File::GetText(absl::string_view object,
                                              absl::string_view name) const {
  const Hdf5Lock lock;
  std::string text;
  OT_RETURN_IF_ERROR(
      WithAttribute(id_, path_, object, name, [&](hid_t attribute, hid_t type) -> absl::Status {
        if (H5Tget_class(type) != H5T_STRING) return WrongKind(path_, object, name, "text");
        if (H5Tis_variable_str(type) > 0) {
          const Handle memory(MakeTextType(), H5Tclose);
          H5Tset_cset(memory.get(), H5Tget_cset(type));
          char* value = nullptr;
          if (H5Aread(attribute, memory.get(), &value) < 0) {
            return Hdf5Error(absl::StrCat("read the attribute ", name, " of ", object), path_);
          }
          if (value != nullptr) text = value;
          H5free_memory(value);
          return absl::OkStatus();
        }
        text.resize(H5Tget_size(type));
        if (H5Aread(attribute, type, text.data()) < 0) {
          return Hdf5Error(absl::StrCat("read the attribute ", name, " of ", object), path_);
        }
        text.resize(text.find_last_not_of('\0') + 1);  // npos + 1 is 0
        return absl::OkStatus();
      }));
  return text;
}

absl::StatusOr<int64_t> Hdf5File::GetInt(absl::string_view object, absl::string_view name) const {
  const Hdf5Lock lock;
  int64_t value = 0;
  OT_RETURN_IF_ERROR(
      WithAttribute(id_, path_, object, name, [&](hid_t attribute, hid_t type) -> absl::Status {
        if (H5Tget_class(type) != H5T_INTEGER) return WrongKind(path_, object, name, "an integer");
        if (H5Aread(attribute, H5T_NATIVE_INT64, &value) < 0) {
          return Hdf5Error(absl::StrCat("read the attribute ", name, " of ", object), path_);
        }
        return absl::OkStatus();
      }));
  return value;
}

absl::StatusOr<uint64_t> Hdf5File::GetUint(absl::string_view object, absl::string_view name) const {
  const Hdf5Lock lock;
  uint64_t value = 0;
  OT_RETURN_IF_ERROR(
      WithAttribute(id_, path_, object, name, [&](hid_t attribute, hid_t type) -> absl::Status {
        if (H5Tget_class(type) != H5T_INTEGER) return WrongKind(path_, object, name, "an integer");
        if (H5Aread(attribute, H5T_NATIVE_UINT64, &value) < 0) {
          return Hdf5Error(absl::StrCat("read the attribute ", name, " of ", object), path_);
        }
        return absl::OkStatus();
      }));
  return value;
}

absl::StatusOr<double> Hdf5File::GetDouble(absl::string_view object, absl::string_view name) const {
  const Hdf5Lock lock;
  double value = 0;
  OT_RETURN_IF_ERROR(
      WithAttribute(id_, path_, object, name, [&](hid_t attribute, hid_t type) -> absl::Status {
        if (H5Tget_class(type) != H5T_FLOAT) return WrongKind(path_, object, name, "a number");
        if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) {
          return Hdf5Error(absl::StrCat("read the attribute ", name, " of ", object), path_);
        }
        return absl::OkStatus();
      }));
  return value;
}

bool Hdf5File::HasAttribute(absl::string_view object, absl::string_view name) const {
  const Hdf5Lock lock;
  return H5Aexists_by_name(id_, std::string(object).c_str(), std::string(name).c_str(),
                           H5P_DEFAULT) > 0;
}

}  // namespace overtok
