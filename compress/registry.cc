// Registry: the table of codecs, and their language.
//
//   text   := name [ "(" [ key "=" value { "," key "=" value } ] ")" ] [ "+ef" ]
//   name, key := letters, digits, "_"       value := anything but , ( ) + = and space
//
// Blanks around the words are skipped. A value built on first use by an explicit function, so that
// nothing happens before main(); nothing else in the tree lists the codecs.
#include <algorithm>
#include <array>
#include <cctype>

#include "compress/codecs.h"
#include "runtime/base/check.h"
#include "runtime/base/float_arrays.h"

namespace hora {
namespace {

tl::unexpected<Error> bad_text(std::string_view text, const std::string& what) {
  return fail(ErrorKind::invalid_argument,
              "codec '" + std::string(text.substr(0, kMaxCodecText)) + "': " + what);
}

/// Takes a text apart from the left.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : rest_(text) {}

  /// The longest front whose characters `belongs` likes; blanks before it are skipped.
  template <class Belongs>
  std::string take(const Belongs& belongs) {
    skip_blanks();
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), belongs);
    std::string word(rest_.begin(), end);
    rest_.remove_prefix(word.size());
    return word;
  }
  bool accept(std::string_view token) {
    skip_blanks();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  [[nodiscard]] bool at_end() {
    skip_blanks();
    return rest_.empty();
  }
  /// "at 'x...'" or "at the end", for messages.
  [[nodiscard]] std::string where() {
    return at_end() ? "at the end" : "at '" + std::string(rest_) + "'";
  }

 private:
  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  std::string_view rest_;
};

bool in_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool in_value(char c) {
  return std::isgraph(static_cast<unsigned char>(c)) != 0 &&
         std::string_view("(),=+").find(c) == std::string_view::npos;
}

Result<void> parse_values(std::string_view text, Scanner& in, CodecWords& words) {
  while (true) {
    const std::string key = in.take(in_word);
    if (key.empty()) return bad_text(text, "a key is missing " + in.where());
    if (!in.accept("=")) return bad_text(text, "'=' is missing after '" + key + "'");
    const std::string value = in.take(in_value);
    if (value.empty()) return bad_text(text, "the value of '" + key + "' is missing");
    if (!words.values.emplace(key, value).second) {
      return bad_text(text, "'" + key + "' is there twice");
    }
    if (in.accept(")")) return {};
    if (!in.accept(",")) return bad_text(text, "',' or ')' is missing " + in.where());
  }
}

std::string names_of_codecs() {
  std::string names;
  for (const CodecRow& row : codecs())
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  return names;
}

}  // namespace

std::size_t Codec::encode_sum(const float* in, const float* added, std::size_t count,
                              std::byte* payload, float* error, EncodeNotes& notes) const {
  for (std::size_t i = 0; i < count; ++i)
    error[i] = in[i] + added[i];
  const std::size_t used = encode(error, count, payload, error);
  notes.overflow = notes.overflow || !all_finite(error, count);
  return used;
}

Result<CodecWords> parse_codec(std::string_view text) {
  if (text.size() > kMaxCodecText) return bad_text(text, "longer than 256 characters");
  Scanner in(text);
  CodecWords words;
  words.name = in.take(in_word);
  if (words.name.empty()) return bad_text(text, "a name is missing " + in.where());
  if (in.accept("(") && !in.accept(")")) HORA_TRY(parse_values(text, in, words));
  if (in.accept("+")) {
    const std::string suffix = in.take(in_word);
    if (suffix != "ef") return bad_text(text, "after '+' comes 'ef', not '" + suffix + "'");
    words.error_feedback = true;
  }
  if (!in.at_end()) {
    return bad_text(text, "nothing makes sense " + in.where() +
                              "; write name(key=value,...) or "
                              "name(key=value,...)+ef");
  }
  return words;
}

tl::unexpected<Error> bad_codec(const CodecWords& words, const std::string& what) {
  return fail(ErrorKind::invalid_argument, "codec '" + words.name + "': " + what);
}

Result<void> only_keys(const CodecWords& words, std::initializer_list<std::string_view> keys) {
  for (const auto& [key, value] : words.values) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    std::string known;
    for (const std::string_view name : keys)
      known += (known.empty() ? "" : ", ") + std::string(name);
    return bad_codec(words, "there is no '" + key + "'; " +
                                (known.empty() ? "it takes no keys" : "it takes " + known));
  }
  return {};
}

const std::vector<CodecRow>& codecs() {
  static const std::vector<CodecRow> rows = {
      {"none", "numbers as they are", "", make_none_codec},
      {"fp16", "float16: half the bytes of float32, overflows at 65504", "", make_fp16_codec},
      {"bf16", "bfloat16: half the bytes, range of float32", "", make_bf16_codec},
      {"int8", "8-bit integers, one float32 scale per 256 elements", "", make_int8_codec},
      {"topk", "the largest elements and their indices; ratio of them is kept", "ratio=0.01",
       make_topk_codec},
  };
  return rows;
}

Result<std::shared_ptr<const Codec>> make_codec(std::string_view text) {
  auto words = parse_codec(text);
  if (!words) return fail(words.error());
  for (const CodecRow& row : codecs()) {
    if (row.name != words->name) continue;
    auto codec = row.make(*words);
    HORA_CHECK(!codec || kCodecStretch % (*codec)->traits().block == 0,
               "every block divides the stretch");
    return codec;
  }
  return bad_text(text, "there is no codec of this name; there are: " + names_of_codecs());
}

}  // namespace hora
