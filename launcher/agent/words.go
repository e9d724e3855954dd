package agent

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of a command that is run without a shell.
const (
	maxCommandBytes = 128 << 10 // what Linux allows for one argument
	maxCommandWords = 4096
)

var errNeedsShell = errors.New("this image has no shell, and the command needs one")

// splitWords splits a command line as a shell would, for images that have no
// shell: blanks separate, quotes and backslashes protect. It refuses what a
// shell would expand or act on rather than pass it on with another meaning.
func splitWords(line string) ([]string, error) { //nolint:gocyclo // one case for each kind of byte
	if len(line) > maxCommandBytes {
		return nil, fmt.Errorf("command is longer than %d bytes", maxCommandBytes)
	}
	var (
		words  []string
		word   strings.Builder
		inWord bool
		quote  byte
	)
	end := func() {
		if inWord {
			words = append(words, word.String())
			word.Reset()
			inWord = false
		}
	}
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == 0:
			return nil, errors.New("command holds a zero byte")
		case quote == '\'' && c != '\'', quote == '"' && !strings.ContainsRune("\"\\$`", rune(c)):
			word.WriteByte(c)
		case quote == c:
			quote = 0
		case c == '\\':
			if i++; i == len(line) {
				return nil, errors.New("command ends with a backslash")
			}
			if quote == '"' && !strings.ContainsRune("\"\\$`\n", rune(line[i])) {
				word.WriteByte('\\')
			}
			word.WriteByte(line[i])
			inWord = true
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inWord = c, true
		case c == ' ' || c == '\t':
			end()
		case strings.ContainsRune("|&;<>()$`*?[]{}#~!\n\r", rune(c)):
			return nil, fmt.Errorf("%w: it holds %q", errNeedsShell, c)
		default:
			word.WriteByte(c)
			inWord = true
		}
		if len(words) > maxCommandWords {
			return nil, fmt.Errorf("command has more than %d words", maxCommandWords)
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("command has an open %c quote", quote)
	}
	end()
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("command is empty")
	}
	return words, nil
}
