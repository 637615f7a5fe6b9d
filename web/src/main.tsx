import "uplot/dist/uPlot.min.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/tables.css";
import "./style/overview.css";
import "./style/lists.css";
import "./style/episode.css";
import "./style/tokens.css";
import "./style/narrow.css";
import "./style/print.css";
import { render } from "preact";
import { App } from "./App";
import { onlyRun } from "./data/source";
import * as keys from "./keys";
import { links } from "./router";
import * as theme from "./theme";

// The key came with the link and is a cookie now: the address can be copied without it.
if (new URLSearchParams(location.search).has("key")) history.replaceState(null, "", location.pathname + location.hash);

const only = onlyRun();
if (only !== null && location.hash.length < 3) location.replace(links.run(only));

theme.start();
keys.start();
render(<App />, document.getElementById("page")!);
