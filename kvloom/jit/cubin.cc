#include "kvloom/jit/cubin.h"

#include <elf.h>

#include <cstring>
#include <vector>

namespace kvloom::jit {
namespace {

/// `count` structures at `offset`; none where they do not lie within the file.
template <class T>
std::vector<T> read(std::string_view file, uint64_t offset, uint64_t count) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return {};
  std::vector<T> list(count);
  if (count > 0) std::memcpy(list.data(), file.data() + offset, count * sizeof(T));
  return list;
}

/// The part of `file` that `section` has there; "" where it has none.
std::string_view bytes_of(std::string_view file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > file.size() || section.sh_size > file.size() - section.sh_offset) return {};
  return file.substr(section.sh_offset, section.sh_size);
}

/// True if a string that ends in 0 lies at `at` and is `name`.
bool is_at(std::string_view names, uint64_t at, std::string_view name) {
  return at < names.size() && names.size() - at > name.size() && names.substr(at, name.size()) == name && names[at + name.size()] == '\0';
}

/// What a cubin says of a name.
struct Symbol {
  bool is_function = false;
  std::string_view bytes;
};

Symbol symbol_of(std::string_view cubin, std::string_view name) {
  const std::vector<Elf64_Ehdr> header = read<Elf64_Ehdr>(cubin, 0, 1);
  if (header.empty() || std::memcmp(header[0].e_ident, ELFMAG, SELFMAG) != 0 || header[0].e_ident[EI_CLASS] != ELFCLASS64) return {};
  const std::vector<Elf64_Shdr> sections = read<Elf64_Shdr>(cubin, header[0].e_shoff, header[0].e_shnum);
  for (const Elf64_Shdr& table : sections) {
    if (table.sh_type != SHT_SYMTAB || table.sh_link >= sections.size()) continue;
    const std::string_view names = bytes_of(cubin, sections[table.sh_link]);
    for (const Elf64_Sym& symbol : read<Elf64_Sym>(cubin, table.sh_offset, table.sh_size / sizeof(Elf64_Sym))) {
      if (!is_at(names, symbol.st_name, name) || symbol.st_shndx >= sections.size()) continue;
      const std::string_view bytes = bytes_of(cubin, sections[symbol.st_shndx]);
      if (symbol.st_value > bytes.size() || symbol.st_size > bytes.size() - symbol.st_value) return {};
      return {ELF64_ST_TYPE(symbol.st_info) == STT_FUNC, bytes.substr(symbol.st_value, symbol.st_size)};
    }
  }
  return {};
}

}  // namespace

std::string variable_of(std::string_view cubin, std::string_view name) { return std::string(symbol_of(cubin, name).bytes); }

bool has_kernel(std::string_view cubin, std::string_view name) {
  const Symbol symbol = symbol_of(cubin, name);
  return symbol.is_function && !symbol.bytes.empty();
}

}  // namespace kvloom::jit
