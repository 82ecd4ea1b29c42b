// Line by line. A line without indentation is a key of the first level; without a value it opens a
// section, whose lines are indented all alike.
#include "launcher/config_file.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace hora {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  const std::size_t end = text.find_last_not_of(kBlanks);
  return end == std::string_view::npos ? "" : text.substr(begin, end + 1 - begin);
}

// The text without its comment: a # at the start or after a blank, outside of quotes. A quote
// begins after a blank, too: it's is one word.
std::string_view without_comment(std::string_view line) {
  char quote = '\0';
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != '\0') {
      if (c == '\\' && quote == '"') ++i;
      if (c == quote) quote = '\0';
    } else if (i == 0 || kBlanks.find(line[i - 1]) != std::string_view::npos) {
      if (c == '#') return line.substr(0, i);
      if (c == '"' || c == '\'') quote = c;
    }
  }
  return line;
}

// A scalar without its quotes; nothing if it is none that we read.
std::optional<std::string> scalar(std::string_view text) {
  if (text.empty() || text == "~" || text == "null") return "";
  const char quote = text.front();
  if (quote != '"' && quote != '\'') {
    const bool special = std::string_view("[]{}&*!|>%@`-?,:").find(quote) != std::string_view::npos;
    if (special || text.find(": ") != std::string_view::npos) return std::nullopt;
    return std::string(text);
  }
  std::string value;
  std::size_t i = 1;
  for (; i < text.size(); ++i) {
    if (text[i] == quote) {
      if (quote == '"' || text.substr(i + 1, 1) != "'") break;
      ++i;  // '' is one '
    } else if (text[i] == '\\' && quote == '"') {
      if (++i >= text.size() || (text[i] != '"' && text[i] != '\\')) return std::nullopt;
    }
    value += text[i];
  }
  return i + 1 == text.size() ? std::optional(value) : std::nullopt;
}

class Reader {
 public:
  explicit Reader(std::string_view name) : name_(name) {}

  Result<void> take(std::string_view raw) {
    ++line_;
    const std::string_view line = without_comment(raw);
    const std::string_view content = trimmed(line);
    if (content.empty() || content == "---") return {};
    const std::size_t indent = line.find_first_not_of(' ');
    if (line[indent] == '\t') return refuse("indent with blanks, not with tabs");
    const std::size_t colon = content.find(':');
    const std::string_view key = trimmed(content.substr(0, colon));
    const bool plain = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    const bool blank_follows = colon + 1 == content.size() || content[colon + 1] == ' ';
    if (colon == std::string_view::npos || !plain || !blank_follows) {
      return refuse(fmt::format("'{}' is not of the form key: value", content));
    }
    const std::string_view text = trimmed(content.substr(colon + 1));
    const auto value = scalar(text);
    if (!value) return refuse(fmt::format("'{}': write one value, not a list or a group", text));
    return indent == 0 ? take_first_level(key, *value) : take_second_level(indent, key, *value);
  }

  std::vector<FileSetting> settings;

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view why) const {
    return fail(ErrorKind::invalid_argument, fmt::format("{}:{}: {}", name_, line_, why));
  }

  Result<void> take_first_level(std::string_view key, const std::string& value) {
    section_.clear();
    indent_ = 0;
    if (!value.empty()) return add(std::string(key), value);
    section_ = key;
    return {};
  }

  Result<void> take_second_level(std::size_t indent, std::string_view key,
                                 const std::string& value) {
    if (section_.empty()) return refuse("indented, but not below a section");
    if (indent_ == 0) indent_ = indent;
    if (indent != indent_) return refuse("not indented like the line above it");
    return value.empty() ? Result<void>() : add(fmt::format("{}.{}", section_, key), value);
  }

  Result<void> add(std::string key, const std::string& value) {
    for (const FileSetting& earlier : settings) {
      if (earlier.key == key) {
        return refuse(fmt::format("{} is set on line {} already", key, earlier.line));
      }
    }
    settings.push_back({std::move(key), value, line_});
    return {};
  }

  std::string_view name_;
  int line_ = 0;
  std::string section_;
  std::size_t indent_ = 0;  ///< Of the section's lines; 0: none yet.
};

}  // namespace

Result<std::vector<FileSetting>> parse_config_file(std::string_view text, std::string_view name) {
  Reader reader(name);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    HORA_TRY(reader.take(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return std::move(reader.settings);
}

}  // namespace hora
