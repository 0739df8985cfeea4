// Server-sent events of a response's body: the data of each, in order.

export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let rest = "";
    let data = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/); // a last \r may be half of a line's end
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the reader of the events has enough
  }
}
