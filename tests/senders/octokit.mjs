// Signs as GitHub does: the body given, or else all of its example deliveries, one JSON object a line.
import { createRequire } from "node:module";
import { sign } from "@octokit/webhooks-methods";

const [secret, given] = process.argv.slice(2);
if (given !== undefined) {
  console.log(await sign(secret, given));
} else {
  for (const { name, examples } of createRequire(import.meta.url)("@octokit/webhooks-examples")) {
    for (const example of examples) {
      const body = JSON.stringify(example);
      console.log(JSON.stringify({ event: name, body, signature: await sign(secret, body) }));
    }
  }
}
