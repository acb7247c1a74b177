// Content hashes on xxHash and OpenSSL's libcrypto; files are streamed, never held whole.
#include "core/io/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "core/check.h"

namespace overtok {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    OT_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void Update(const void* data, size_t bytes) {
    OT_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  }
  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    OT_CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1 && size == 32);
    std::string text;
    for (unsigned int i = 0; i < size; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

}  // namespace

uint64_t Xxh3(const void* data, int64_t bytes, uint64_t seed) {
  OT_CHECK_GE(bytes, 0);
  return XXH3_64bits_withSeed(data, static_cast<size_t>(bytes), seed);
}

struct Xxh3Stream::State {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(),
                                                                        XXH3_freeState};
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) {
  OT_CHECK(state_->state != nullptr && XXH3_64bits_reset(state_->state.get()) == XXH_OK);
}

Xxh3Stream::~Xxh3Stream() = default;

void Xxh3Stream::Update(const void* data, int64_t bytes) {
  OT_CHECK_GE(bytes, 0);
  OT_CHECK(XXH3_64bits_update(state_->state.get(), data, static_cast<size_t>(bytes)) == XXH_OK);
}

uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(state_->state.get()); }

std::string Sha256Hex(absl::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes.data(), bytes.size());
  return hash.Hex();
}

absl::StatusOr<std::string> Sha256HexOfFile(absl::string_view path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(std::string(path).c_str(), "rbe"),
                                                   std::fclose);
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("cannot open ", path, ": ", std::string(std::strerror(errno))));
  }
  Sha256 hash;
  std::vector<char> buffer(size_t{1} << 20);
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    hash.Update(buffer.data(), n);
  }
  if (std::ferror(file.get()) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot read ", path, ": ", std::string(std::strerror(errno))));
  }
  return hash.Hex();
}

}  // namespace overtok
